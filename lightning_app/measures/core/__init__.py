"""What measures share: hooks into a forward pass, the probe pass, nets cut at a layer, histograms, BatchNorm recalibration."""
