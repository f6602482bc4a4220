"""Certificates, exact enumeration, reference runs and benchmarks of a decoder."""
