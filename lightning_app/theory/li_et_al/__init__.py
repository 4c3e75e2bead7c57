"""Li et al. (2016): linear and shortcut nets, their loss at zero, and nets that are exact with small weights."""
