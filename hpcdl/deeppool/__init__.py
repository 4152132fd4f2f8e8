"""DeepPool (Park et al., MLSys 2022): burst-parallel plans, which give each layer a number of GPUs of its own."""
