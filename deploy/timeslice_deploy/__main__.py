import sys

from timeslice_deploy.command import main

sys.exit(main())
