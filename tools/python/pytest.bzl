"""pytest_test: a py_test that runs pytest on the files named in srcs."""

load("@pypi//:requirements.bzl", "requirement")
load("@rules_python//python:defs.bzl", "py_test")

def pytest_test(name, srcs, deps = [], data = [], args = [], support = [], **kwargs):
    """Runs pytest with the settings of //:pytest.ini.

    Args:
      name: of the target.
      srcs: the files that pytest collects.
      deps: py_library targets; pytest and pytest-asyncio are there already.
      data: files for the run.
      args: further arguments for pytest.
      support: modules beside the tests that these import, conftest.py among them.
      **kwargs: as py_test takes them.
    """
    py_test(
        name = name,
        srcs = srcs + support + ["//tools/python:pytest_main.py"],
        main = "//tools/python:pytest_main.py",
        args = ["$(location %s)" % s for s in srcs] + args,
        data = data + ["//:pytest.ini"],
        deps = deps + [requirement("pytest"), requirement("pytest-asyncio")],
        **kwargs
    )
