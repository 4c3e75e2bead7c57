"""What every package may use: errors, arguments, seeds, signals, reading untrusted files, packaged configurations."""
