"""What stands in the manifests and is asked for here too. tests/test_manifests.py holds them against each other."""

NAMESPACE = "timeslice-system"
PART_OF = "app.kubernetes.io/part-of=timeslice"
ORCHESTRATOR = "timesliceorchestrator"
AGENT = "snapshot-agent"
CRD = "timeslicegroups.timeslice.io"
GROUPS = "timeslicegroups.timeslice.io"

ENABLED_LABEL = "timeslice.io/enabled"
GROUP_LABEL_PREFIX = "group.timeslice.io/"

CA_SECRET = "timeslice-ca"
ORCHESTRATOR_SECRET = "timesliceorchestrator-tls"
AGENT_SECRET = "snapshot-agent-tls"

CERTIFICATE_ANNOTATION = "timeslice.io/certificate"
"""On pod templates: a digest of the certificate in use, so that a new one restarts the pods."""

FIELD_MANAGER = "timeslice-deploy"
OLDEST_KUBERNETES = (1, 34)
"""The first with dynamic resource allocation (resource.k8s.io/v1) on by default."""
