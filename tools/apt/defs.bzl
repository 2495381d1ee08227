"""deb_package: files out of a Debian package of the machine's own release, for tests; nothing is installed."""

def _deb_package_impl(ctx):
    got = ctx.execute(
        ["sh", "-euc", """
apt-get download "$1"
dpkg-deb --fsys-tarfile "$1"_*.deb | tar -x
rm "$1"_*.deb
""", "sh", ctx.attr.package],
        timeout = 300,
    )
    if got.return_code != 0:
        fail("Debian package %s: %s\n%s\nIt needs apt-get, dpkg-deb and package lists (apt-get update)." % (ctx.attr.package, got.stdout, got.stderr))
    ctx.file("BUILD", 'filegroup(name = "files", srcs = glob(%s), visibility = ["//visibility:public"])\n' % ctx.attr.files)

deb_package = repository_rule(
    implementation = _deb_package_impl,
    attrs = {
        "files": attr.string_list(mandatory = True, doc = "globs below the package's root"),
        "package": attr.string(mandatory = True),
    },
)
