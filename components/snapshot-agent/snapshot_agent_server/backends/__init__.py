"""How contexts are saved that the agent saves by itself: the driver. Others are told to (`api/channels.py`)."""
