"""Checks: models by TLC, proofs by z3, and (later) exported spans against the lifecycle."""
