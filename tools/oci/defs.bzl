"""Container images without an engine or a registry: layers of .deb files, of wheels and of other files.

A layer is NAME.tar.gz, with what is known of it in NAME.layer.json. An image is NAME.tar (an OCI layout and a
docker-archive in one), NAME.digest (of its manifest) and NAME.spdx.json (what is in it).
"""

load("//tools/wheel:version.bzl", "VERSION")

LayerInfo = provider(
    doc = "A layer of an image.",
    fields = {
        "facts": "JSON file: the hash before compression, and the packages in the layer",
        "tar": "the layer, tar.gz",
    },
)

_TOOL = {"_oci": attr.label(default = "//tools/oci", executable = True, cfg = "exec")}

def _layer(ctx, step, inputs, args):
    out = ctx.actions.declare_file(ctx.label.name + ".tar.gz")
    facts = ctx.actions.declare_file(ctx.label.name + ".layer.json")
    step_args = ctx.actions.args()
    step_args.add(step)
    step_args.add("--out", out)
    step_args.add("--facts", facts)
    ctx.actions.run(
        executable = ctx.executable._oci,
        arguments = [step_args, args],
        inputs = inputs,
        outputs = [out, facts],
        mnemonic = "OciLayer",
        progress_message = "Packing layer %s" % out.short_path,
        use_default_shell_env = True,  # so that built_elsewhere can change it
    )
    return [DefaultInfo(files = depset([out])), LayerInfo(tar = out, facts = facts)]

def _deb_layer_impl(ctx):
    args = ctx.actions.args()
    if ctx.attr.system:
        args.add("--system")
    args.add_all(ctx.attr.leave_out, format_each = "--leave-out=%s")
    args.add_all(ctx.files.debs)
    return _layer(ctx, "debs", ctx.files.debs, args)

deb_layer = rule(
    doc = "What Debian packages hold.",
    implementation = _deb_layer_impl,
    attrs = dict(
        debs = attr.label_list(allow_files = [".deb"], mandatory = True),
        leave_out = attr.string_list(doc = "patterns of paths; * matches slashes too"),
        system = attr.bool(doc = "with users, trusted certificates and what else no package brings"),
        **_TOOL
    ),
)

def _wheel_layer_impl(ctx):
    args = ctx.actions.args()
    if ctx.attr.commands:
        args.add("--commands")
    args.add_all(ctx.attr.leave_out, format_each = "--leave-out=%s")
    args.add_all(ctx.files.wheels)
    return _layer(ctx, "wheels", ctx.files.wheels, args)

wheel_layer = rule(
    doc = "Python distributions, installed.",
    implementation = _wheel_layer_impl,
    attrs = dict(
        commands = attr.bool(doc = "with the commands of the distributions, in /usr/local/bin"),
        leave_out = attr.string_list(doc = "patterns of paths below dist-packages; * matches slashes too"),
        wheels = attr.label_list(allow_files = [".whl"], mandatory = True),
        **_TOOL
    ),
)

def _file_layer_impl(ctx):
    args = ctx.actions.args()
    for target, folder in ctx.attr.files.items():
        for f in target[DefaultInfo].files.to_list():
            args.add("%s=%s/%s" % (f.path, folder, f.basename))
    for target, place in ctx.attr.renamed.items():
        args.add("%s=%s" % (target[DefaultInfo].files.to_list()[0].path, place))
    args.add_all(ctx.attr.executables, format_each = "--executable=%s")
    args.add_all(["%s=%s" % link for link in ctx.attr.symlinks.items()], format_each = "--symlink=%s")
    return _layer(ctx, "files", ctx.files.files + ctx.files.renamed, args)

file_layer = rule(
    doc = "Files, each with its own name below a folder.",
    implementation = _file_layer_impl,
    attrs = dict(
        executables = attr.string_list(doc = "places of files that can be run, besides those in folders named bin"),
        files = attr.label_keyed_string_dict(allow_files = True, doc = "files, and the folder in the image for each"),
        renamed = attr.label_keyed_string_dict(allow_files = True, doc = "single files, and the whole path for each"),
        symlinks = attr.string_dict(doc = "path and what the link says"),
        **_TOOL
    ),
)

def _oci_image_impl(ctx):
    config = ctx.actions.declare_file(ctx.label.name + ".config.json")
    labels = {
        "org.opencontainers.image.description": ctx.attr.description,
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.source": ctx.attr.source,
        "org.opencontainers.image.title": ctx.attr.title,
        "org.opencontainers.image.version": VERSION,
    }
    ctx.actions.write(config, json.encode_indent({
        "Cmd": ctx.attr.cmd,
        "Entrypoint": ctx.attr.entrypoint,
        "Env": ["%s=%s" % pair for pair in sorted(ctx.attr.env.items())],
        "Labels": labels,
        "User": ctx.attr.user,
        "WorkingDir": "/",
    }) + "\n")
    layers = [layer[LayerInfo] for layer in ctx.attr.layers]
    args = ctx.actions.args()
    args.add("image")
    args.add("--out", ctx.outputs.tar)
    args.add("--digest", ctx.outputs.digest)
    args.add("--sbom", ctx.outputs.sbom)
    args.add("--config", config)
    args.add("--ref", "localhost/%s:%s" % (ctx.attr.title, VERSION))
    for layer in layers:
        args.add("--layer", layer.tar)
        args.add("--facts", layer.facts)
    ctx.actions.run(
        executable = ctx.executable._oci,
        arguments = [args],
        inputs = [config] + [layer.tar for layer in layers] + [layer.facts for layer in layers],
        outputs = [ctx.outputs.tar, ctx.outputs.digest, ctx.outputs.sbom],
        mnemonic = "OciImage",
        progress_message = "Writing image %s" % ctx.outputs.tar.short_path,
        use_default_shell_env = True,  # so that built_elsewhere can change it
    )
    return [DefaultInfo(files = depset([ctx.outputs.tar, ctx.outputs.digest, ctx.outputs.sbom]))]

oci_image = rule(
    doc = "An image, named localhost/TITLE:VERSION.",
    implementation = _oci_image_impl,
    outputs = {
        "digest": "%{name}.digest",
        "sbom": "%{name}.spdx.json",
        "tar": "%{name}.tar",
    },
    attrs = dict(
        cmd = attr.string_list(),
        description = attr.string(mandatory = True),
        entrypoint = attr.string_list(),
        env = attr.string_dict(),
        layers = attr.label_list(mandatory = True, providers = [LayerInfo], doc = "the lowest first"),
        source = attr.string(mandatory = True, doc = "where the sources of what is ours are"),
        title = attr.string(mandatory = True),
        user = attr.string(doc = "UID:GID; empty: root"),
        **_TOOL
    ),
)
