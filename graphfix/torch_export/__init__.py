"""Lossless export from PyTorch: the extra ``graphfix[torch]``. Nothing outside this package imports torch."""
