{{- define "draco.name" -}}
{{- default .Release.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "draco.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Whether these parts are installed: "true" or nothing. */}}
{{- define "draco.agents" -}}
{{- if and (eq .Values.profile "full") .Values.agent.enabled }}true{{ end -}}
{{- end -}}

{{- define "draco.deviceClasses" -}}
{{- if and (eq .Values.profile "full") .Values.deviceClasses.enabled }}true{{ end -}}
{{- end -}}

{{/* Whether the webhook adds Draco's scheduling gate to pods. */}}
{{- define "draco.gatesPods" -}}
{{- if and .Values.operator.enabled .Values.operator.allocate .Values.operator.gatePods }}true{{ end -}}
{{- end -}}

{{/* Whether the operator serves webhooks. */}}
{{- define "draco.webhook" -}}
{{- if and .Values.operator.enabled (or .Values.webhook.enabled (include "draco.gatesPods" .)) }}true{{ end -}}
{{- end -}}

{{/* Metadata of a webhook configuration. Call with a dict of root and name. */}}
{{- define "draco.webhookMeta" -}}
name: {{ .name }}
labels:
  {{- include "draco.labels" (dict "root" .root "component" "operator") | nindent 2 }}
{{- if .root.Values.webhook.certManager }}
annotations:
  cert-manager.io/inject-ca-from: {{ .root.Release.Namespace }}/{{ .name }}
{{- end }}
{{- end -}}

{{/* The clientConfig of a webhook. Call with a dict of root, name, path and authority (the CA; "" if cert-manager injects it). */}}
{{- define "draco.webhookClient" -}}
{{- with .authority }}
caBundle: {{ . }}
{{- end }}
service:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  path: {{ .path }}
  port: 443
{{- end -}}

{{/* Whether the cluster can be queried: not in `helm template`. */}}
{{- define "draco.live" -}}
{{- if lookup "v1" "Namespace" "" "kube-system" }}true{{ end -}}
{{- end -}}

{{/* Whether to create an object of the Prometheus operator. Call with a dict of root, enabled and kind. */}}
{{- define "draco.monitored" -}}
{{- if eq (toString .enabled) "true" }}true
{{- else if eq (toString .enabled) "auto" }}
{{- if .root.Capabilities.APIVersions.Has (printf "monitoring.coreos.com/v1/%s" .kind) }}true{{ end }}
{{- end -}}
{{- end -}}

{{/* Labels of one component. Call with a dict of root and component. */}}
{{- define "draco.selectorLabels" -}}
app.kubernetes.io/name: draco
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "draco.labels" -}}
{{ include "draco.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* Restricts an admission policy to one service account. Call with a dict of root and account. */}}
{{- define "draco.policyFor" -}}
failurePolicy: Fail
matchConditions:
  - name: is-it
    expression: request.userInfo.username == 'system:serviceaccount:{{ .root.Release.Namespace }}:{{ .account }}'
{{- end -}}

{{/* CEL: whether a request tolerates the taint draco.dev/operator-allocated. */}}
{{- define "draco.toleratesItsWayIn" -}}
{{ . }}.?tolerations.orValue([]).exists(one, one.?effect.orValue('') in ['', 'NoSchedule'] && (one.?key.orValue('') == 'draco.dev/operator-allocated' || one.?key.orValue('') == '' && one.?operator.orValue('') == 'Exists'))
{{- end -}}

{{/* CEL: whether the register lists an allocated device or the GPU that it is a part of. */}}
{{- define "draco.isRegistered" -}}
params.?spec.?pools[?({{ . }}.driver + '/' + {{ . }}.pool)].orValue([]).exists(gpu, gpu == {{ . }}.device || {{ . }}.device.startsWith(gpu + '-mig-'))
{{- end -}}

{{/* CEL: whether the register names the operator with this token as leader, or none. A leader in a pod needs that pod's token. */}}
{{- define "draco.leadsByRegister" -}}
params.?spec.?leader == optional.none() || params.?spec.?leader.?podUID.orValue('') == request.userInfo.?extra[?'authentication.kubernetes.io/pod-uid'][?0].orValue('')
{{- end -}}

{{/* CEL: whether two maps are equal except for some keys. Call with a list of both and the keys. */}}
{{- define "draco.sameBut" -}}
{{- $but := toJson (index . 2) | replace "\"" "'" -}}
>-
{{ index . 0 }}.all(key, key in {{ $but }} || {{ index . 1 }}[?key] == optional.of({{ index . 0 }}[key]))
&& {{ index . 1 }}.all(key, key in {{ $but }} || key in {{ index . 0 }})
{{- end -}}

{{/* CEL: the node selector terms of a pod's spec. */}}
{{- define "draco.nodeTerms" -}}
{{ . }}.?affinity.?nodeAffinity.?requiredDuringSchedulingIgnoredDuringExecution.?nodeSelectorTerms.orValue([])
{{- end -}}

{{/* CEL: whether containers equal those of a template, except for what says which GPU is meant. Call with a list of both lists. */}}
{{- define "draco.sameContainers" -}}
{{ index . 0 }}.map(one, one.name) == {{ index . 1 }}.map(one, one.name)
&& {{ index . 0 }}.all(one, {{ index . 1 }}.exists(other, other.name == one.name
&& one.all(key, key in ['env', 'resources'] || other[?key] == optional.of(one[key]))
&& other.all(key, key in one)
&& one.?env.orValue([]).filter(each, !(each.name in variables.told))
== other.?env.orValue([]).filter(each, !(each.name in variables.told))
&& one.?env.orValue([]).filter(each, each.name in variables.told).all(each,
each.all(key, key in ['name', 'value']) && each.?value.orValue('').matches('^[-A-Za-z0-9._:/]{0,253}$')
&& (each.name != 'DRACO_NODE' || each.?value.orValue('') == variables.node))
&& one.?resources.orValue(dyn({})).all(key, key == 'claims' || other.?resources[?key] == optional.of(one.resources[key]))
&& other.?resources.orValue(dyn({})).all(key, key == 'claims' || key in one.resources)
&& one.?resources.?claims.orValue([]).filter(each, each.name != 'draco-gpu')
== other.?resources.?claims.orValue([]).filter(each, each.name != 'draco-gpu')))
{{- end -}}

{{/* The node that an agent's token was issued for. */}}
{{- define "draco.agentNode" -}}
- name: node
  expression: request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
{{- end -}}

{{- define "draco.agentHasNode" -}}
- expression: variables.node != ''
  message: the agent's token names no node; run the agent as a pod of its DaemonSet
{{- end -}}

{{/* Where an alert is explained. Call with a list of root and the alert's name. */}}
{{- define "draco.runbook" -}}
runbook_url: {{ printf "%s/alerts/%s.md" ((index . 0).Values.metrics.rules.runbookURL | default "docs/runbooks" | trimSuffix "/") (index . 1) }}
{{- end -}}

{{/* The name in the certificate of a component's metrics. Call with a dict of root and component. */}}
{{- define "draco.metricsHost" -}}
{{ printf "%s-%s-metrics.%s.svc" (include "draco.name" .root) .component .root.Release.Namespace }}
{{- end -}}

{{/* The components that are installed, in JSON. */}}
{{- define "draco.components" -}}
{{- $found := list }}
{{- if .Values.operator.enabled }}{{ $found = append $found "operator" }}{{ end }}
{{- if include "draco.agents" . }}{{ $found = append $found "agent" }}{{ end }}
{{- toJson $found -}}
{{- end -}}

{{/* A program's environment for its endpoints. Call with a dict of root and component. */}}
{{- define "draco.endpointsEnv" -}}
- name: DRACO_LISTEN
  value: 0.0.0.0:{{ .root.Values.metrics.port }}
{{- if .root.Values.metrics.secure.enabled }}
- name: DRACO_METRICS_LISTEN
  value: 0.0.0.0:{{ .root.Values.metrics.secure.port }}
- name: DRACO_METRICS_CERTIFICATES
  value: /etc/draco/metrics
- name: DRACO_METRICS_NAME
  value: {{ include "draco.metricsHost" . }}
{{- end }}
{{- end -}}

{{/* The ports of its endpoints. */}}
{{- define "draco.endpointsPorts" -}}
- name: probes
  containerPort: {{ .Values.metrics.port }}
{{- if .Values.metrics.secure.enabled }}
- name: metrics
  containerPort: {{ .Values.metrics.secure.port }}
{{- end }}
{{- end -}}

{{/* The port that metrics are served on. */}}
{{- define "draco.metricsPort" -}}
{{ ternary .Values.metrics.secure.port .Values.metrics.port .Values.metrics.secure.enabled }}
{{- end -}}

{{/* The certificate of a component's metrics, as a volume. No pod waits for it. Call with a dict of root and component. */}}
{{- define "draco.metricsVolume" -}}
- name: metrics
  secret:
    secretName: {{ include "draco.name" .root }}-{{ .component }}-metrics
    optional: true
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
{{- end -}}

{{/* The rights to ask the API server who a scraper is. */}}
{{- define "draco.reviewRules" -}}
{{- if .Values.metrics.secure.enabled -}}
# To ask the API server who may read metrics: whose token this is, and whether that user may get /metrics.
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}
{{- end -}}
