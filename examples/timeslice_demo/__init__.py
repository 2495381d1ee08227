"""The demo: reinforcement-learning jobs that take turns on two simulated GPUs, and the proof that it changed nothing.

Start at main.py. A job is three processes: controller.py, and worker_process.py twice, as sampler and as trainer.
"""
