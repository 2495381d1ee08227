"""deb_files: the .deb files of a lock file, fetched by the machine's own apt."""

def _deb_files_impl(ctx):
    got = ctx.execute(
        ["sh", ctx.path(ctx.attr._fetch), ctx.path(ctx.attr.lock), ctx.path(ctx.attr._apt)],
        timeout = 600,
    )
    if got.return_code != 0:
        fail("Debian packages for the images: %s\n%s" % (got.stdout, got.stderr))
    if got.stdout:
        # buildifier: disable=print
        print("WARNING: " + got.stdout)
    ctx.file("BUILD", """package(default_visibility = ["//visibility:public"])

[filegroup(
    name = deb[:-len(".deb")],
    srcs = [deb],
) for deb in glob(["*.deb"])]
""")

deb_files = repository_rule(
    doc = "A target for each package, named as the package.",
    implementation = _deb_files_impl,
    attrs = {
        "lock": attr.label(allow_single_file = True, mandatory = True),
        "_apt": attr.label(default = "//tools/apt:private_apt.sh", allow_single_file = True),
        "_fetch": attr.label(default = "//tools/oci:fetch_debs.sh", allow_single_file = True),
    },
    environ = ["STRICT_DEBS"],
)
