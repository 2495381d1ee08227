"""Kubernetes nodes with mock GPUs: what a GPU operator, NVIDIA's device plugin and its DRA driver do for real ones."""
