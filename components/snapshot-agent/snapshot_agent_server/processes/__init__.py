"""What /proc and pidfds say about the processes of contexts."""
