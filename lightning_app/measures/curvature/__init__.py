"""Curvature of the loss: Hessian-vector products, Lanczos, and the spectrum's ends, density and shares."""
