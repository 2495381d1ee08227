"""The API server, for the edges that need it: requests as data, collections that follow a watch, TimeSliceGroups.

The only package that imports `kubernetes`.
"""
