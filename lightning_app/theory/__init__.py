"""What needs no training: closed forms and constructions of the papers, executable. Pure functions on tensors."""
