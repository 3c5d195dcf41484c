"""The fused training path on CUDA: `dispatch` decides, `chain` and `ends` compute, kernels are in Triton."""
