"""From spans back to the spec: what an export says about each probe, and whether it may."""
