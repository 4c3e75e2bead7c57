"""Littwin & Wolf (2016): residual nets as mixtures of spin glasses, their paths, and what makes their scales grow."""
