{{- define "podmeter.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "podmeter.fullname" -}}
{{- $name := include "podmeter.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "podmeter.selector" -}}
app.kubernetes.io/name: {{ include "podmeter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "podmeter.labels" -}}
{{ include "podmeter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Of the objects of helm test: no policy and no Service selects them as a podmeter. */}}
{{- define "podmeter.testLabels" -}}
app.kubernetes.io/name: {{ include "podmeter.name" . | trunc 58 | trimSuffix "-" }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* A Service without an address of its own: each podmeter has only its node's values. One that is not ready is in it, too: its
metrics have the reason. */}}
{{- define "podmeter.headlessService" -}}
clusterIP: None
publishNotReadyAddresses: true
selector:
  {{- include "podmeter.selector" . | nindent 2 }}
ports:
  - name: metrics
    port: {{ .Values.listen.port }}
    targetPort: metrics
    protocol: TCP
{{- end -}}

{{- define "podmeter.serviceAccount" -}}
{{- default (ternary (include "podmeter.fullname" .) "default" .Values.serviceAccount.create) .Values.serviceAccount.name -}}
{{- end -}}

{{- define "podmeter.image" -}}
{{- with .Values.image -}}
{{- $missing := "image.repository is empty: there is no published image of podmeter yet. Build one from a checkout with deploy/image/build, push it to your registry or import it on the nodes, and set image.repository=REGISTRY/podmeter (docs/install.md)" -}}
{{- required $missing .repository -}}
{{- if .digest -}}@{{ .digest }}{{- else -}}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* yes where GPUs are requested from NVIDIA's container toolkit. */}}
{{- define "podmeter.toolkit" -}}
{{- if has .Values.driver.profile (list "toolkit" "gpu-operator") -}}yes{{- end -}}
{{- end -}}

{{/* yes where the driver is the node's own, without NVIDIA's container toolkit. */}}
{{- define "podmeter.hostDriver" -}}
{{- if has .Values.driver.profile (list "gke" "host") -}}yes{{- end -}}
{{- end -}}

{{- define "podmeter.runtimeClass" -}}
{{- default (ternary "nvidia" "" (eq .Values.driver.profile "gpu-operator")) .Values.driver.runtimeClassName -}}
{{- end -}}

{{/* The node's directory with the driver, in addition to what the toolkit mounts. */}}
{{- define "podmeter.driverRoot" -}}
{{- default (get (dict "gpu-operator" "/run/nvidia" "gke" "/home/kubernetes/bin/nvidia") .Values.driver.profile) .Values.driver.root -}}
{{- end -}}

{{/* yes where the metrics port uses TLS. */}}
{{- define "podmeter.tls" -}}
{{- if and .Values.webConfig.existingSecret .Values.webConfig.tls -}}yes{{- end -}}
{{- end -}}

{{- define "podmeter.nvidiaConfigMap" -}}
{{- if .Values.nvidiaConfig.configMap -}}
{{- .Values.nvidiaConfig.configMap -}}
{{- else if .Values.nvidiaConfig.text -}}
{{- include "podmeter.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* The configuration file, with the devices of the node's own driver. */}}
{{- define "podmeter.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- if and (include "podmeter.hostDriver" .) (eq .Values.mode "full") (not (include "podmeter.nvidiaConfigMap" .)) -}}
{{- $resource := dict "kind" "nvidia" "deviceListStrategy" (list "device-nodes") -}}
{{- if eq .Values.driver.profile "host" -}}
{{- /* Where images expect the driver, as on GKE, whose directory is podmeter's default. */ -}}
{{- $_ := set $resource "driverMounts" (list (dict "hostPath" .Values.driver.root "containerPath" "/usr/local/nvidia")) -}}
{{- end -}}
{{- $config = merge $config (dict "devicePlugin" (dict "resources" (list $resource))) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{- define "podmeter.securityContext" -}}
runAsUser: 0
runAsGroup: 0
readOnlyRootFilesystem: true
{{- if include "podmeter.hostDriver" . }}
privileged: true
{{- else }}
privileged: false
allowPrivilegeEscalation: false
capabilities:
  drop: [ALL]
{{- end }}
{{- end -}}

{{- define "podmeter.updateStrategy" -}}
{{- with .Values.updateStrategy -}}
{{ .type }}{{ if eq .type "RollingUpdate" }}, maxUnavailable {{ .rollingUpdate.maxUnavailable }}{{ end }}
{{- end -}}
{{- end -}}
