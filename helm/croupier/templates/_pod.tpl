{{- /* The pod of the service. */ -}}
{{- define "croupier.podSpec" -}}
{{- $container := include "croupier.container" . | fromYaml -}}
{{- $flags := list (printf "--listen=%s:%v" .Values.bindAddress .Values.ports.grpc) "--uds=none" (printf "--lame-duck=%vs" .Values.lameDuckSeconds) -}}
{{- $_ := set $container "args" (concat $container.args $flags (include "croupier.accessFlags" . | fromJsonArray)) -}}
serviceAccountName: {{ include "croupier.serviceAccountName" . }}
automountServiceAccountToken: false
# Its own variables are named like those that Kubernetes would make for a Service called croupier.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpread }}
{{- if .enabled }}
topologySpreadConstraints:
  - topologyKey: {{ .topologyKey }}
    maxSkew: {{ .maxSkew }}
    whenUnsatisfiable: {{ .whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "croupier.selectorLabels" $ | nindent 8 }}
    # Of the same version: else the old pods decide where the new ones go.
    matchLabelKeys: [pod-template-hash]
{{- end }}
{{- end }}
{{- with include "croupier.resourceClaims" . }}
resourceClaims:
  {{- . | nindent 2 }}
{{- end }}
containers:
  - name: croupier
    {{- toYaml $container | nindent 4 }}
    ports:
      - name: grpc
        containerPort: {{ .Values.ports.grpc }}
      - name: admin
        containerPort: {{ .Values.ports.admin }}
    startupProbe:
      httpGet: {path: /readyz, port: admin}
      {{- toYaml .Values.probes.startup | nindent 6 }}
    livenessProbe:
      httpGet: {path: /livez, port: admin}
      {{- toYaml .Values.probes.liveness | nindent 6 }}
    readinessProbe:
      httpGet: {path: /readyz, port: admin}
      {{- toYaml .Values.probes.readiness | nindent 6 }}
    volumeMounts:
      {{- include "croupier.configMount" . | nindent 6 }}
      {{- with include "croupier.accessMounts" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
volumes:
  {{- include "croupier.configVolume" . | nindent 2 }}
  {{- with include "croupier.accessVolumes" . | trim }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end }}
