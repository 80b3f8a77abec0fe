{{/* Metrics without which alerts, recording rules and the dashboards Fleet, Node and Namespace are complete. */}}
{{- define "podmeter.droppedByLean" -}}
{{- $device := list "clock_event_active" "clock_hertz" "ecc_lifetime_errors_total" "engine_busy_seconds_total"
      "graphics_engine_active_ratio" "memory_busy_seconds_total" "nvlink_errors_total" "pcie_link_generation"
      "pcie_link_generation_max" "pcie_replays_total" "performance_state" "pipe_active_ratio" "row_remap_banks"
      "row_remaps_total" "sm_occupancy_ratio" -}}
podmeter_(.+_duration_seconds_(bucket|count|sum)|nvml_implausible_readings_total|device_({{ join "|" $device }})|mig_(pipe_active_ratio|sm_occupancy_ratio))
{{- end -}}

{{/* The labels, selector and limits that a PodMonitor and a ServiceMonitor have in common. */}}
{{- define "podmeter.monitor" -}}
metadata:
  name: {{ include "podmeter.fullname" .context }}
  namespace: {{ default .context.Release.Namespace .monitor.namespace }}
  labels:
    {{- include "podmeter.labels" .context | nindent 4 }}
    {{- with .monitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  selector:
    matchLabels:
      {{- include "podmeter.selector" .context | nindent 6 }}
  namespaceSelector:
    matchNames: [{{ .context.Release.Namespace }}]
  {{- with .monitor.sampleLimit }}
  sampleLimit: {{ int . }}
  {{- end }}
  {{- with .monitor.labelLimit }}
  labelLimit: {{ int . }}
  {{- end }}
{{- end -}}

{{- define "podmeter.endpoints" -}}
{{- $context := .context -}}
{{- $monitor := .monitor -}}
{{- range $path := ternary (list "/metrics" "/metrics/dcgm") (list "/metrics") $monitor.dcgm }}
- port: metrics
  path: {{ $path }}
  interval: {{ $monitor.interval }}
  scrapeTimeout: {{ $monitor.scrapeTimeout }}
  {{- if include "podmeter.tls" $context }}
  scheme: https
  {{- end }}
  {{- with $monitor.tlsConfig }}
  tlsConfig:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with $monitor.basicAuth }}
  basicAuth:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  # namespace, pod and container are the workloads', as exported by podmeter; the target's are dropped.
  honorLabels: true
  relabelings:
    {{- with $monitor.relabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
    - sourceLabels: [__meta_kubernetes_pod_node_name]
      targetLabel: node
    - action: labeldrop
      regex: namespace|pod|container|service|endpoint
    {{- if ne $path "/metrics" }}
    # A job of its own: both paths of a pod have the same address, and would share the series up and scrape_*.
    - sourceLabels: [job]
      targetLabel: job
      replacement: $1-dcgm
    {{- end }}
  {{- $lean := eq $context.Values.metrics.series "lean" }}
  {{- if or $lean $monitor.metricRelabelings }}
  metricRelabelings:
    {{- if $lean }}
    - action: drop
      sourceLabels: [__name__]
      regex: {{ include "podmeter.droppedByLean" $context }}
    {{- end }}
    {{- with $monitor.metricRelabelings }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
{{- end }}
{{- end -}}
