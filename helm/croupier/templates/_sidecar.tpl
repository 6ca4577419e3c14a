{{- /*
Templates for another chart's pods. That chart has this one as a dependency in mode sidecar and includes them with
`.Subcharts.croupier` (its alias, if it has one). helm/examples/worker uses them all.
*/ -}}

{{- define "croupier.sidecar.socket" -}}
{{ .Values.sidecar.socketDirectory }}/croupier.sock
{{- end }}

{{- /* The sidecar's address for the worker, as a gRPC target. */ -}}
{{- define "croupier.sidecar.target" -}}
unix:{{ include "croupier.sidecar.socket" . }}
{{- end }}

{{- /* The admin port's URL from within the container. */ -}}
{{- define "croupier.sidecar.admin" -}}
http://{{ ternary "[::1]" "127.0.0.1" (eq .Values.bindAddress "[::]") }}:{{ .Values.ports.admin }}
{{- end }}

{{- /* An entry of initContainers. It is always restarted, which makes it a sidecar; the worker waits for its startup probe. */ -}}
{{- define "croupier.sidecar.container" -}}
{{- /* Readiness is probed over the worker's socket: it closes connections above max_connections, and a worker that cannot connect has
no sampler. Startup and liveness are probed over the admin port, where workers take no connections: a server that is full must not be
killed, and after a restart workers may fill it before the first probe. /readyz answers 200 only when all sockets are open, so the worker
finds its socket. All probes run within the container, because the pod's network, its policies and meshes are the worker's. */ -}}
{{- $ask := list "croupier" "healthcheck" (printf "--addr=%s" (include "croupier.sidecar.target" .)) -}}
{{- $askAdmin := list "croupier" "healthcheck" (printf "--admin=%s" (include "croupier.sidecar.admin" .)) -}}
{{- /* `croupier healthcheck` waits as long as the kubelet does: with its own default, a longer timeout would have no effect. */ -}}
{{- $probes := .Values.probes -}}
{{- $container := include "croupier.container" . | fromYaml -}}
{{- $flags := list "--listen=none" (printf "--uds=%s" (include "croupier.sidecar.socket" .)) "--lame-duck=0s" -}}
{{- $_ := set $container "args" (concat $container.args $flags) -}}
- name: {{ .Values.sidecar.containerName | quote }}
  restartPolicy: Always
  {{- toYaml $container | nindent 2 }}
  ports:
    - name: croupier-admin
      containerPort: {{ .Values.ports.admin }}
  startupProbe:
    exec:
      command: {{ toJson (append $askAdmin (printf "--timeout=%vs" ($probes.startup.timeoutSeconds | default 1))) }}
    {{- toYaml $probes.startup | nindent 4 }}
  livenessProbe:
    exec:
      command: {{ toJson (concat $askAdmin (list "--service=liveness" (printf "--timeout=%vs" ($probes.liveness.timeoutSeconds | default 1)))) }}
    {{- toYaml $probes.liveness | nindent 4 }}
  readinessProbe:
    exec:
      command: {{ toJson (concat $ask (list "--service=readiness" (printf "--timeout=%vs" ($probes.readiness.timeoutSeconds | default 1)))) }}
    {{- toYaml $probes.readiness | nindent 4 }}
  volumeMounts:
    {{- include "croupier.sidecar.volumeMounts" . | nindent 4 }}
    {{- include "croupier.configMount" . | nindent 4 }}
{{- end }}

{{- /* Entries of volumes. The socket's volume is on disk, because a socket holds no data. */ -}}
{{- define "croupier.sidecar.volumes" -}}
- name: {{ .Values.sidecar.socketVolume | quote }}
  emptyDir: {}
{{ include "croupier.configVolume" . }}
{{- end }}

{{- /* Entries of the worker's volumeMounts. */ -}}
{{- define "croupier.sidecar.volumeMounts" -}}
- name: {{ .Values.sidecar.socketVolume | quote }}
  mountPath: {{ .Values.sidecar.socketDirectory }}
{{- end }}

{{- /* Entries of the worker's env. */ -}}
{{- define "croupier.sidecar.env" -}}
- name: CROUPIER_TARGET
  value: {{ include "croupier.sidecar.target" . }}
{{- end }}

{{- /* Part of the pod's securityContext: both containers are in the group that owns the socket. The group applies to all volumes of the
pod; the kubelet is to change the files of a large one only once, and not at each start. */ -}}
{{- define "croupier.sidecar.podSecurityContext" -}}
fsGroup: {{ .Values.sidecar.fsGroup }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}

{{- /* Labels of the pod, which the PodMonitor selects. */ -}}
{{- define "croupier.sidecar.podLabels" -}}
croupier/sidecar: {{ include "croupier.fullname" . | quote }}
{{- end }}

{{- /* Annotations of the pod. They replace the pod when the configuration changes, since the server reads it only once. */ -}}
{{- define "croupier.sidecar.podAnnotations" -}}
{{ include "croupier.configChecksum" . }}
{{- end }}

{{- /* Entries of the pod's resourceClaims: one claim, for both containers. Empty without `gpu.mode` claim. */ -}}
{{- define "croupier.sidecar.resourceClaims" -}}
{{ include "croupier.resourceClaims" . }}
{{- end }}

{{- /* Entries of the worker's resources.claims, so that it has the same GPU. Empty without `gpu.mode` claim. */ -}}
{{- define "croupier.sidecar.claims" -}}
{{- if eq .Values.gpu.mode "claim" -}}
- name: {{ .Values.gpu.claim.name | quote }}
{{- end -}}
{{- end }}
