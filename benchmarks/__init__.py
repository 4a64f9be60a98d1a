"""Speed and memory, measured as ratios in one run; results are kept beside the code that made them."""
