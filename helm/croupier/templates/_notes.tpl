{{- /* The notes shown after an installation. Helm does not show a subchart's notes, so a chart that depends on this one includes them
in its own: `include "croupier.notes" .Subcharts.croupier`. */ -}}
{{- define "croupier.notes" -}}
{{- $name := include "croupier.fullname" . }}
{{- $state := include "croupier.bytes" (include "croupier.setting" (list . "max_state_bytes")) | int64 }}
{{- $flight := include "croupier.bytes" (include "croupier.setting" (list . "max_bytes_in_flight")) | int64 }}
{{- $vocab := include "croupier.setting" (list . "max_vocab_size") | int64 }}
{{- $thread := mul $vocab 48 }}
{{- $threads := include "croupier.threads" . }}
{{- /* The grammar compiler, which takes this memory from the first grammar on. */ -}}
{{- $grammars := ternary (mul $vocab 640) (0 | int64) (eq (toString .Values.config.grammars) "true") }}
{{- $regions := 0 | int64 }}
{{- if and (ne .Values.mode "service") (ne (.Values.config.region_socket | default "auto") "none") }}
{{- $regions = include "croupier.bytes" (include "croupier.setting" (list . "max_region_bytes")) | int64 }}
{{- end }}
{{- /* If no rank may attach, there are no shards. */ -}}
{{- $shards := 0 | int64 }}
{{- if ne (toString .Values.config.max_attached_ranks) "0" }}
{{- $shards = include "croupier.bytes" (include "croupier.setting" (list . "max_shard_bytes")) | int64 }}
{{- end }}
{{- /* A sidecar has one worker. The values do not say how many workers a replica of a service has: assume eight, or max_streams if
that is fewer. */ -}}
{{- $workers := ternary 1 (min 8 (include "croupier.setting" (list . "max_streams"))) (ne .Values.mode "service") | int64 }}
{{- $worker := add (include "croupier.bytes" (include "croupier.setting" (list . "http2_connection_window"))) (include "croupier.bytes" (include "croupier.setting" (list . "max_message_bytes"))) }}
{{- $bound := add $state $flight $regions $shards $grammars 67108864 (mul $worker $workers) (mul $thread ($threads | default "0" | int64)) }}
{{- if eq .Values.mode "service" -}}
Croupier {{ .Chart.AppVersion }}: {{ $name }} in {{ .Release.Namespace }}. Workers reach it at

  {{ $name }}.{{ .Release.Namespace }}.svc:{{ .Values.ports.grpc }}
{{- if .Values.service.headless }}
  dns:///{{ $name }}-headless.{{ .Release.Namespace }}.svc:{{ .Values.ports.grpc }}   (clients that balance themselves)
{{- end }}

Next:

  kubectl -n {{ .Release.Namespace }} rollout status deployment/{{ $name }}
  kubectl -n {{ .Release.Namespace }} exec deployment/{{ $name }} -- croupier healthcheck --{{ if include "croupier.tlsSecret" . }}admin=http://127.0.0.1:{{ .Values.ports.admin }}{{ else }}addr=127.0.0.1:{{ .Values.ports.grpc }}{{ end }}
  kubectl -n {{ .Release.Namespace }} port-forward service/{{ include "croupier.adminService" . }} {{ .Values.ports.admin }}   # then http://127.0.0.1:{{ .Values.ports.admin }}/metrics
{{- if ne .Values.gpu.mode "none" }}

Each replica has a GPU. Rows come over the network and are copied to it ({{ with .Values.config.host_rows }}config.host_rows {{ . }}{{ else }}--host-rows=cuda{{ end }}). This pays only where the
CPU is short and rows are flat: docs/deployment.md, With a GPU.
{{- end }}
{{- else -}}
Croupier {{ .Chart.AppVersion }} for pods of another chart, whose templates include croupier.sidecar.*. The socket is

  {{ include "croupier.sidecar.target" . }}

Next:

  kubectl -n {{ .Release.Namespace }} get pods -l croupier/sidecar={{ $name }}
  kubectl -n {{ .Release.Namespace }} logs -l croupier/sidecar={{ $name }} -c {{ .Values.sidecar.containerName }}
  kubectl -n {{ .Release.Namespace }} exec POD -c {{ .Values.sidecar.containerName }} -- croupier healthcheck --addr={{ include "croupier.sidecar.target" . }}

The pod needs a terminationGracePeriodSeconds of at least {{ add .Values.drainTimeoutSeconds 2 }}, 2 more than drainTimeoutSeconds. Otherwise Kubernetes
kills Croupier, when it restarts it, before the worker's streams have left.
{{- end }}

Memory of one container, at most:

  max_state_bytes      {{ printf "%6d" (div $state 1048576) }} MiB   state of sequences
  max_bytes_in_flight  {{ printf "%6d" (div $flight 1048576) }} MiB   messages received and not yet answered
{{- if $regions }}
  max_region_bytes     {{ printf "%6d" (div $regions 1048576) }} MiB   shared memory for the worker's logits
{{- end }}
{{- if $shards }}
  max_shard_bytes      {{ printf "%6d" (div $shards 1048576) }} MiB   columns from ranks of tensor-parallel workers; none with max_attached_ranks 0
{{- end }}
  workers              {{ printf "%6d" (div (mul $worker $workers) 1048576) }} MiB   {{ $workers }} with messages in transit: http2_connection_window and max_message_bytes{{ if eq .Values.mode "service" }};
                                    each further one takes {{ div $worker 1048576 }} MiB more, less with smaller messages{{ end }}
  program              {{ printf "%6d" 64 }} MiB
{{- if $grammars }}
  grammars             {{ printf "%6d" (div $grammars 1048576) }} MiB   their compiler, for {{ $vocab }} tokens, less for smaller vocabularies
{{- end }}
{{- if $threads }}
  threads              {{ printf "%6d" (div (mul $thread ($threads | int64)) 1048576) }} MiB   {{ $threads }} with scratch for rows of {{ $vocab }} tokens, less for smaller vocabularies
  total                {{ printf "%6d" (div $bound 1048576) }} MiB
{{- else }}
  total                {{ printf "%6d" (div $bound 1048576) }} MiB
  plus each thread     {{ printf "%6d" (div $thread 1048576) }} MiB   scratch for rows of {{ $vocab }} tokens, less for smaller vocabularies
{{- end }}
{{- with (.Values.resources.limits | default dict).memory }}
{{- if lt (include "croupier.bytes" . | int64) $bound }}

WARNING: the memory limit of {{ . }} is less than their sum, {{ div $bound 1048576 }} MiB: under load the container
would be killed instead of refusing work. Raise it, or lower these settings. A setting that must not exceed one of them has to go
down with it: {{ if $regions }}max_bytes_per_region, {{ end }}max_message_bytes, http2_stream_window.
{{- end }}
{{- end }}
{{- $summed := list "max_state_bytes" "max_bytes_in_flight" "max_vocab_size" "grammars" "max_attached_ranks" "max_shard_bytes" }}
{{- $summed = concat $summed (list "max_streams" "http2_connection_window" "max_message_bytes" "threads") }}
{{- if ne .Values.mode "service" }}{{ $summed = concat $summed (list "region_socket" "max_region_bytes") }}{{ end }}
{{- $overriding := list }}
{{- range .Values.extraEnv }}
{{- if and (hasPrefix "CROUPIER_" .name) (has (trimPrefix "CROUPIER_" .name | lower) $summed) }}{{ $overriding = append $overriding .name }}{{ end }}
{{- end }}
{{- with $overriding }}

WARNING: extraEnv sets {{ join ", " . }}, which the sum above does not know: a variable overrides the same setting of config. Set
config.{{ first . | trimPrefix "CROUPIER_" | lower }} instead.
{{- end }}
{{- if not (or $threads (has "CROUPIER_THREADS" $overriding)) }}

WARNING: neither resources.limits.cpu nor config.threads is set: the server starts a thread for every core of its node.
{{- end }}
{{- with include "croupier.job" . }}
{{- if not (regexMatch (printf "^(?:%s)$" $.Values.prometheusRule.jobs) .) }}

WARNING: Prometheus will call this job {{ . }}, which prometheusRule.jobs, {{ $.Values.prometheusRule.jobs }}, does not match:
instances that never come up raise no alert. Change prometheusRule.jobs where the rules are installed, or the name (fullnameOverride).
{{- end }}
{{- end }}
{{- if and (eq .Values.mode "service") (not .Values.networkPolicy.enabled) (not .Values.tls.clientAuth.enabled) (not .Values.auth.existingSecret) }}

WARNING: networkPolicy is off, and clients need neither a certificate nor a token: anyone who can reach the port may use it.
{{- end }}
{{- if and (ne .Values.service.type "ClusterIP") (or (not (include "croupier.tlsSecret" .)) (not (or .Values.tls.clientAuth.enabled .Values.auth.existingSecret))) }}

WARNING: service.type {{ .Values.service.type }} opens the gRPC port outside the cluster, {{ if include "croupier.tlsSecret" . }}to anyone{{ else }}in plain text{{ end }}. Set tls, and tls.clientAuth or
auth. The admin port stays inside, at {{ include "croupier.adminService" . }}.{{ .Release.Namespace }}.svc:{{ .Values.ports.admin }}.
{{- end }}
{{- if and (ne .Values.service.type "ClusterIP") .Values.networkPolicy.enabled (not .Values.networkPolicy.allowFrom) }}

WARNING: the network policy lets only pods of {{ .Release.Namespace }} use gRPC, and nobody from outside. Name the clients, for example

  networkPolicy:
    allowFrom:
      - podSelector: {}                        # pods of {{ .Release.Namespace }}, as now
      - ipBlock: {cidr: 203.0.113.0/24}        # clients outside{{ if ne .Values.service.externalTrafficPolicy "Local" }}; and nodes, unless service.externalTrafficPolicy is Local{{ end }}
{{- end }}
{{- $scaling := .Values.autoscaling }}
{{- if and (eq .Values.mode "service") (or $scaling.hpa.enabled $scaling.keda.enabled) (not $scaling.metric) (le (int64 $scaling.minReplicas) 2) (gt (int64 $scaling.cpuUtilization) 45) }}

WARNING: with two replicas at {{ $scaling.cpuUtilization }} percent of the requested CPU, one has no room for the streams of both while the other is
replaced. Set autoscaling.cpuUtilization to 45, or use more replicas, unless the CPU limit is far above the request.
{{- end }}
{{- $annotated := hasKey (.Values.podAnnotations | default dict) "prometheus.io/scrape" }}
{{- $scraped := or .Values.serviceMonitor.enabled .Values.podMonitor.enabled $annotated }}
{{- if and (eq .Values.mode "service") $scaling.keda.enabled (not $scraped) }}

WARNING: KEDA scales on what {{ $scaling.keda.serverAddress }} has scraped from the replicas, and neither serviceMonitor nor podMonitor is
enabled. Without these figures the number of replicas stays as it is. Enable one, unless something else has Prometheus scrape them.
{{- end }}
{{- if and .Values.auth.existingSecret (not (include "croupier.tlsSecret" .)) }}

WARNING: tokens cross the network in plain text. Set tls, unless something else encrypts the traffic between pods.
{{- end }}
{{- if and .Values.tls.clientAuth.enabled (not .Values.tls.clientAuth.existingSecret) }}

WARNING: clients are let in with any certificate of the authority that signed the server's own. If it signs for others too, give
clients their own authority: tls.clientAuth.existingSecret.
{{- end }}
{{- if and (eq .Values.mode "service") (or .Values.serviceMonitor.enabled .Values.podMonitor.enabled) .Values.networkPolicy.enabled (not .Values.networkPolicy.allowMetricsFrom) }}

WARNING: the network policy lets only pods of {{ .Release.Namespace }} read metrics. If Prometheus runs elsewhere, name its namespace:
networkPolicy.allowMetricsFrom.
{{- end }}
{{- end }}
