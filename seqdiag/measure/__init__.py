"""Instruments: gradient probes, allocation, Lyapunov exponents."""
