{{/* The policies of this chart, by name. */}}
{{- define "fairlead.policies" -}}
[fairlead-agent-turns, fairlead-execution-authors, fairlead-execution-status, fairlead-leader-term, fairlead-node-leases, fairlead-owners, fairlead-run-children, fairlead-secrets, fairlead-service-accounts, fairlead-status, fairlead-unconfined]
{{- end }}

{{/* Our parts are not ready while a policy or a CRD is missing or older than they are, so they must be able to look. */}}
{{- define "fairlead.readinessRules" -}}
- apiGroups: [admissionregistration.k8s.io]
  resources: [validatingadmissionpolicies, validatingadmissionpolicybindings]
  resourceNames: {{ include "fairlead.policies" . }}
  verbs: [get]
- apiGroups: [apiextensions.k8s.io]
  resources: [customresourcedefinitions]
  resourceNames: [agentruns.fairlead.dev, agentturns.fairlead.dev, modelproviders.fairlead.dev, tools.fairlead.dev, toolexecutions.fairlead.dev]
  verbs: [get]
{{- end }}
