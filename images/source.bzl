"""Where the sources of the images are, for their labels and bills of materials. A fork sets its own."""

SOURCE = "https://timeslice.io/source"
