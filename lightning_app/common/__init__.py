"""What every package may use: errors, arguments, seeds, signals, reading untrusted files, configurations and versions."""
