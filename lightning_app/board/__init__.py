"""The page of ``report``, live: a small server on this machine, which reads run folders and writes nothing.

`command` is the command line, `server` answers requests, `views` knows which runs there are and which pages are looked at,
and `drawing`, in a process of its own, reads runs and draws the sections in which something has changed. Nothing of it is in
the process that trains.
"""

from lightning_app.board.command import main

__all__ = ["main"]
