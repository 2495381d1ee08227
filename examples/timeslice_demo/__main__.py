from timeslice_demo.main import main

raise SystemExit(main())
