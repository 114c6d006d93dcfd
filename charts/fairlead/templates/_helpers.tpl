{{- define "fairlead.selector" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "fairlead.labels" -}}
app.kubernetes.io/name: fairlead
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "fairlead.image" -}}
{{ .root.Values.image.registry }}/{{ .repository }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* User names as the API server spells them. */}}
{{- define "fairlead.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:fairlead-operator
{{- end }}

{{- define "fairlead.nodeAgentUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:fairlead-node-agent
{{- end }}

{{/*
A CEL list of the users that collect garbage and empty namespaces: controllers with identities of their own, and the one
they share where the controller manager runs without --use-service-account-credentials.
*/}}
{{- define "fairlead.collectors" -}}
['system:serviceaccount:kube-system:generic-garbage-collector', 'system:serviceaccount:kube-system:namespace-controller', 'system:kube-controller-manager']
{{- end }}

{{/* The binding of a policy to the whole cluster. A tenant cannot override its Deny. */}}
{{- define "fairlead.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "fairlead.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}
