{{/* Refuses contradictory values, and names the value to set. */}}
{{- define "podmeter.check" -}}
{{- $values := .Values -}}
{{- $elsewhere := dict "listen" "listen.address and listen.port" "kubeletRoot" "kubelet.root" "podResourcesSocket" "kubelet.root"
      "devicePluginDir" "kubelet.devicePluginDir" "devRoot" "mounts.dev" "adminSocket" "adminSocket" "driverRoot" "driver.root"
      "podLogsRoot" "mounts.podLogs" "nvidiaConfig" "nvidiaConfig" "webConfig" "webConfig" "probeListen" "listen.address"
      "stateDir" "stateDir" -}}
{{- range $key, $value := $elsewhere -}}
{{- if hasKey $values.config $key -}}
{{- fail (printf "config.%s is set by this chart: use the value %s instead" $key $value) -}}
{{- end -}}
{{- end -}}
{{- if and (hasKey $values.config "devicePlugin") (not (kindIs "map" $values.config.devicePlugin)) -}}
{{- fail "config.devicePlugin: use the value mode (full or exporter) to switch the device plugin" -}}
{{- end -}}
{{- $config := fromYaml (include "podmeter.config" .) -}}
{{- if and $values.nvidiaConfig.text $values.nvidiaConfig.configMap -}}
{{- fail "nvidiaConfig: give text or configMap, not both" -}}
{{- end -}}
{{- if and (eq $values.driver.profile "none") (eq $values.nodes "gpu") -}}
{{- fail "driver.profile=none is for nodes without NVIDIA GPUs, and nodes=gpu excludes them: set nodes=all" -}}
{{- end -}}
{{- if and (eq $values.driver.profile "host") (not $values.driver.root) -}}
{{- fail "driver.profile=host needs the driver's directory on the node: set driver.root" -}}
{{- end -}}
{{- if and (eq $values.driver.profile "none") $values.driver.root -}}
{{- fail "driver.root is the directory of a driver, and driver.profile=none uses none: set another profile" -}}
{{- end -}}
{{- if and $values.podMonitor.enabled $values.serviceMonitor.enabled -}}
{{- fail "podMonitor and serviceMonitor would scrape each podmeter twice: enable one of them" -}}
{{- end -}}
{{- range $monitor := list "podMonitor" "serviceMonitor" -}}
{{- $interval := (get $values $monitor).interval -}}
{{- if not (regexMatch "^([1-9][0-9]?s|1[01][0-9]s|120s|[12]m)$" $interval) -}}
{{- fail (printf "%s.interval=%s: give 1s to 120s, or 1m or 2m; the rules and dashboards read windows of 5m" $monitor $interval) -}}
{{- end -}}
{{- end -}}
{{- if and (has (toString (get $config "processAttribution")) (list "on" "true")) (not $values.hostPID) -}}
{{- fail "config.processAttribution=on needs the host's process ids: set hostPID=true" -}}
{{- end -}}
{{- if and (get $config "podLabels") (not $values.mounts.podsApi) -}}
{{- fail "config.podLabels needs the kubelet's Pods API: set mounts.podsApi=true" -}}
{{- end -}}
{{- range $key := list "stateMaxSize" "stateMaxAge" -}}
{{- if and (hasKey $config $key) (not $values.stateDir.enabled) -}}
{{- fail (printf "config.%s limits the journal, which is off: set stateDir.enabled=true" $key) -}}
{{- end -}}
{{- end -}}
{{- $file := toString (default "none" (get $config "conditionFile")) -}}
{{- $directories := list -}}
{{- if $values.adminSocket -}}
{{- $directories = append $directories "/run/podmeter" -}}
{{- end -}}
{{- if $values.stateDir.enabled -}}
{{- $directories = append $directories "/var/lib/podmeter" -}}
{{- end -}}
{{- range $values.extraVolumeMounts -}}
{{- $directories = append $directories .mountPath -}}
{{- end -}}
{{- $isWritable := eq $file "none" -}}
{{- range $directories -}}
{{- $isWritable = or $isWritable (hasPrefix (printf "%s/" (trimSuffix "/" .)) $file) -}}
{{- end -}}
{{- if not $isWritable -}}
{{- fail (printf "config.conditionFile=%s is in no writable mount: use /run/podmeter/health.json with adminSocket=true, or extraVolumeMounts" $file) -}}
{{- end -}}
{{- if eq (int $values.listen.port) 9411 -}}
{{- fail "listen.port=9411 is the port of the probes: choose another" -}}
{{- end -}}
{{- if eq $values.mode "full" -}}
{{- $settings := dict "mounts" $values.mounts "hostDriver" (include "podmeter.hostDriver" .) -}}
{{- include "podmeter.checkResources" (merge (dict "where" "config.devicePlugin" "plugin" $config.devicePlugin) $settings) -}}
{{- range $number, $profile := default list $config.profiles -}}
{{- $where := printf "config.profiles[%d].devicePlugin" $number -}}
{{- include "podmeter.checkResources" (merge (dict "where" $where "plugin" $profile.devicePlugin) $settings) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Refuses resources whose mounts are off. */}}
{{- define "podmeter.checkResources" -}}
{{- $resources := kindIs "map" .plugin | ternary .plugin dict | dig "resources" list -}}
{{- range $number, $resource := default list $resources -}}
{{- $where := printf "%s.resources[%d]" $.where $number -}}
{{- $strategies := $resource.deviceListStrategy -}}
{{- $strategies = kindIs "string" $strategies | ternary (list $strategies) (default list $strategies) -}}
{{- $cdi := or (has "cdi-annotations" $strategies) (has "cdi-cri" $strategies) -}}
{{- $nodes := or $cdi (has "device-nodes" $strategies) (eq (get $resource "kind") "path") (eq (toString (get $resource "passDeviceSpecs")) "true") -}}
{{- if and $nodes (not $.mounts.dev) (not $.hostDriver) -}}
{{- fail (printf "%s needs the host's device nodes: set mounts.dev=true" $where) -}}
{{- end -}}
{{- if and $cdi (not $.mounts.cdi) -}}
{{- fail (printf "%s uses CDI: set mounts.cdi=true" $where) -}}
{{- end -}}
{{- if and (hasKey (kindIs "map" $resource.sharing | ternary $resource.sharing dict) "mps") (not $.mounts.mps) -}}
{{- fail (printf "%s shares through MPS: set mounts.mps=true" $where) -}}
{{- end -}}
{{- end -}}
{{- end -}}
