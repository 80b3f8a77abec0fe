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

{{- define "podmeter.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* yes where GPUs are requested from NVIDIA's toolkit: not on GKE, not without a driver. */}}
{{- define "podmeter.toolkit" -}}
{{- if has .Values.driver.profile (list "toolkit" "gpu-operator") -}}yes{{- end -}}
{{- end -}}

{{- define "podmeter.runtimeClass" -}}
{{- default (ternary "nvidia" "" (eq .Values.driver.profile "gpu-operator")) .Values.driver.runtimeClassName -}}
{{- end -}}

{{/* Host directories of a driver, in addition to what the toolkit mounts. */}}
{{- define "podmeter.driverMount" -}}
{{- get (dict "gpu-operator" "/run/nvidia" "gke" "/home/kubernetes/bin/nvidia") .Values.driver.profile -}}
{{- end -}}

{{- define "podmeter.nvidiaConfigMap" -}}
{{- if .Values.nvidiaConfig.configMap -}}
{{- .Values.nvidiaConfig.configMap -}}
{{- else if .Values.nvidiaConfig.text -}}
{{- include "podmeter.fullname" . -}}
{{- end -}}
{{- end -}}

{{/* `helm upgrade --reuse-values` may lack values newer than 0.1.0. */}}
{{- define "podmeter.webSecret" -}}
{{- default "" (default dict .Values.webConfig).existingSecret -}}
{{- end -}}

{{/* yes where the metrics port uses TLS. */}}
{{- define "podmeter.tls" -}}
{{- if and (include "podmeter.webSecret" .) (ne (toString (default dict .Values.webConfig).tls) "false") -}}yes{{- end -}}
{{- end -}}

{{/* The container port of the kubelet's probes: a separate one where the metrics port requires authentication. */}}
{{- define "podmeter.probePort" -}}
{{- ternary "probes" "metrics" (ne (include "podmeter.webSecret" .) "") -}}
{{- end -}}

{{- define "podmeter.kernelLog" -}}
{{- if (default dict .Values.kernelLog).enabled -}}yes{{- end -}}
{{- end -}}

{{/* yes where the container must be privileged. */}}
{{- define "podmeter.privileged" -}}
{{- $kernelLog := default dict .Values.kernelLog -}}
{{- if or (eq .Values.driver.profile "gke") (and $kernelLog.enabled (ne (toString $kernelLog.privileged) "false")) -}}yes{{- end -}}
{{- end -}}

{{/* The node's directory for the journal; empty without a journal. */}}
{{- define "podmeter.stateDir" -}}
{{- $state := default dict .Values.stateDir -}}
{{- if $state.enabled -}}{{- default "/var/lib/podmeter" $state.hostPath -}}{{- end -}}
{{- end -}}

{{/* The configuration file, with keys set by other values: GKE's resources, and XIDs from the kernel's log. */}}
{{- define "podmeter.config" -}}
{{- $config := deepCopy .Values.config -}}
{{- $plugin := get $config "devicePlugin" -}}
{{- if and (eq .Values.driver.profile "gke") (eq .Values.mode "full") (not (include "podmeter.nvidiaConfigMap" .)) -}}
{{- if not (kindIs "map" $plugin) -}}{{- $plugin = dict -}}{{- end -}}
{{- if not (hasKey $plugin "resources") -}}
{{- $_ := set $plugin "resources" (list (dict "kind" "nvidia" "deviceListStrategy" (list "device-nodes"))) -}}
{{- end -}}
{{- $_ := set $config "devicePlugin" $plugin -}}
{{- end -}}
{{- if include "podmeter.kernelLog" . -}}
{{- $_ := set $config "health" (merge (dict "kmsg" "on") (default dict (get $config "health"))) -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Refuses contradictory values, and names the value to set. */}}
{{- define "podmeter.check" -}}
{{- $elsewhere := dict "listen" "listen.address and listen.port" "kubeletRoot" "kubelet.root" "podResourcesSocket" "kubelet.root"
      "devicePluginDir" "kubelet.devicePluginDir" "devRoot" "mounts.dev" "adminSocket" "adminSocket" "driverRoot" "driver.profile"
      "podLogsRoot" "mounts.podLogs" "nvidiaConfig" "nvidiaConfig" "webConfig" "webConfig" "probeListen" "webConfig"
      "stateDir" "stateDir" -}}
{{- range $key, $value := $elsewhere -}}
{{- if hasKey $.Values.config $key -}}
{{- fail (printf "config.%s is set by this chart: use the value %s instead" $key $value) -}}
{{- end -}}
{{- end -}}
{{- $config := fromYaml (include "podmeter.config" .) -}}
{{- $plugin := get $config "devicePlugin" -}}
{{- if and (hasKey $config "devicePlugin") (not (kindIs "map" $plugin)) -}}
{{- fail "config.devicePlugin: use the value mode (full or exporter) to switch the device plugin" -}}
{{- end -}}
{{- if and .Values.nvidiaConfig.text .Values.nvidiaConfig.configMap -}}
{{- fail "nvidiaConfig: give text or configMap, not both" -}}
{{- end -}}
{{- if and (has (toString (get $config "processAttribution")) (list "on" "true")) (not .Values.hostPID) -}}
{{- fail "config.processAttribution=on needs the host's process ids: set hostPID=true" -}}
{{- end -}}
{{- if and (get $config "podLabels") (not .Values.mounts.podsApi) -}}
{{- fail "config.podLabels needs the kubelet's Pods API: set mounts.podsApi=true" -}}
{{- end -}}
{{- range $key := list "stateMaxSize" "stateMaxAge" -}}
{{- if and (hasKey $config $key) (not (include "podmeter.stateDir" $)) -}}
{{- fail (printf "config.%s limits the journal, which is off: set stateDir.enabled=true" $key) -}}
{{- end -}}
{{- end -}}
{{- if and (include "podmeter.webSecret" .) (eq (int .Values.listen.port) 9411) -}}
{{- fail "listen.port=9411 is the port of the probes with webConfig.existingSecret: choose another" -}}
{{- end -}}
{{- $kmsg := toString (get (default dict (get .Values.config "health")) "kmsg") -}}
{{- if and (has $kmsg (list "on" "true")) (not (include "podmeter.kernelLog" .)) (ne .Values.driver.profile "gke") -}}
{{- fail "config.health.kmsg needs /dev/kmsg: set kernelLog.enabled=true" -}}
{{- end -}}
{{- if and (kindIs "map" $plugin) (eq .Values.mode "full") -}}
{{- range $number, $resource := (default list (get $plugin "resources")) -}}
{{- $where := printf "config.devicePlugin.resources[%d]" $number -}}
{{- $strategies := default list (get $resource "deviceListStrategy") -}}
{{- $cdi := or (has "cdi-annotations" $strategies) (has "cdi-cri" $strategies) -}}
{{- $nodes := or $cdi (has "device-nodes" $strategies) (eq (get $resource "kind") "path") (eq (toString (get $resource "passDeviceSpecs")) "true") -}}
{{- if and $nodes (not $.Values.mounts.dev) (ne $.Values.driver.profile "gke") -}}
{{- fail (printf "%s needs the host's device nodes: set mounts.dev=true" $where) -}}
{{- end -}}
{{- if and $cdi (not $.Values.mounts.cdi) -}}
{{- fail (printf "%s uses CDI: set mounts.cdi=true" $where) -}}
{{- end -}}
{{- if and (hasKey (default dict (get $resource "sharing")) "mps") (not $.Values.mounts.mps) -}}
{{- fail (printf "%s shares through MPS: set mounts.mps=true" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
