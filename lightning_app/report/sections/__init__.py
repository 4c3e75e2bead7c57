"""The sections of the page, a file each."""
