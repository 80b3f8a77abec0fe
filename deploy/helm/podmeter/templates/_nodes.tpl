{{/* Labels by which a node has NVIDIA GPUs; any of them suffices. */}}
{{- define "podmeter.gpuNodes" -}}
# Node Feature Discovery: as NVIDIA's charts configure it, and by default (display and 3D controllers).
- {key: feature.node.kubernetes.io/pci-10de.present, operator: In, values: ["true"]}
- {key: feature.node.kubernetes.io/pci-0300_10de.present, operator: In, values: ["true"]}
- {key: feature.node.kubernetes.io/pci-0302_10de.present, operator: In, values: ["true"]}
# NVIDIA's GPU operator and GPU feature discovery; or set by hand.
- {key: nvidia.com/gpu.present, operator: In, values: ["true"]}
# GKE, AKS, Karpenter on AWS, EKS Auto Mode.
- {key: cloud.google.com/gke-accelerator, operator: Exists}
- {key: kubernetes.azure.com/accelerator, operator: In, values: [nvidia]}
- {key: karpenter.k8s.aws/instance-gpu-manufacturer, operator: In, values: [nvidia]}
- {key: eks.amazonaws.com/instance-gpu-manufacturer, operator: In, values: [nvidia]}
{{- end -}}

{{/* The value affinity, with GPU nodes required. Terms are alternatives, and the expressions of a term are all required:
each term of ours is therefore combined with each of the user's. */}}
{{- define "podmeter.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- if eq .Values.nodes "gpu" -}}
{{- $nodeAffinity := default dict $affinity.nodeAffinity -}}
{{- $required := default dict $nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution -}}
{{- $terms := list -}}
{{- range $theirs := default (list dict) $required.nodeSelectorTerms -}}
{{- range $ours := include "podmeter.gpuNodes" $ | fromYamlArray -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (prepend (default list $theirs.matchExpressions) $ours)) $theirs) -}}
{{- end -}}
{{- end -}}
{{- $_ := set $nodeAffinity "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $nodeAffinity -}}
{{- end -}}
{{- with $affinity -}}{{- toYaml . -}}{{- end -}}
{{- end -}}

{{/* The label by which NVIDIA's GPU operator removes pods from a node. Of those that its driver manager and its MIG manager change,
the default is the one of a pod that podmeter never replaces: nobody sets it to false on a node to run podmeter there instead. */}}
{{- define "podmeter.operatorLabel" -}}
{{- default (ternary "nvidia.com/gpu.deploy.gpu-feature-discovery" "" (eq .Values.driver.profile "gpu-operator")) .Values.driver.operatorLabel -}}
{{- end -}}

{{/* The value nodeSelector, with the operator's label. */}}
{{- define "podmeter.nodeSelector" -}}
{{- $selector := deepCopy .Values.nodeSelector -}}
{{- with include "podmeter.operatorLabel" . -}}{{- $_ := set $selector . "true" -}}{{- end -}}
{{- with $selector -}}{{- toYaml . -}}{{- end -}}
{{- end -}}
