"""What a cluster says of this node: its pods, and the groups that it is in. Read only."""
