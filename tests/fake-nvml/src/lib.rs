//! A fake libnvidia-ml.so.1.
