"""Measuring: timings that know of noise, suites of operations beside their float baselines, reports and pictures."""
