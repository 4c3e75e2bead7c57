"""Speeds as ratios from interleaved runs; `timing` is how, the other files are what."""

import skipscope

skipscope.prepare()  # what is timed here runs as in `fit`; see `apart.AS_IT_COMES` for what users have otherwise
