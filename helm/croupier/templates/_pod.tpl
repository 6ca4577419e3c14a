{{- /* The replicas to write into the Deployment. With an autoscaler none, because the autoscaler sets them. But if Helm wrote them
before, leaving them out would reset them to 1, Kubernetes' default, and cut the streams of all other replicas; so the current number
is written. Helm with server-side apply (version 4, field managers that `Apply`) gives up the field once the autoscaler has changed it;
to write it even then would make a rollback fail, in conflict with the autoscaler. Without server-side apply, Helm removes what the
previous revision had, whoever changed it since. `helm template` has nothing to look up. */ -}}
{{- define "croupier.replicas" -}}
{{- if not (or .Values.autoscaling.hpa.enabled .Values.autoscaling.keda.enabled) -}}
{{- .Values.replicaCount -}}
{{- else -}}
{{- with lookup "apps/v1" "Deployment" .Release.Namespace (include "croupier.fullname" .) -}}
{{- $applied := false -}}
{{- $ours := false -}}
{{- range .metadata.managedFields -}}
{{- if eq .operation "Apply" -}}
{{- $applied = true -}}
{{- $ours = or $ours (hasKey (dig "f:spec" dict (.fieldsV1 | default dict)) "f:replicas") -}}
{{- end -}}
{{- end -}}
{{- if or $ours (not $applied) }}{{ .spec.replicas }}{{ end -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* The service's pod. */ -}}
{{- define "croupier.podSpec" -}}
{{- $container := include "croupier.container" . | fromYaml -}}
{{- $flags := list (printf "--listen=%s:%v" .Values.bindAddress .Values.ports.grpc) "--uds=none" (printf "--lame-duck=%vs" .Values.lameDuckSeconds) -}}
{{- $_ := set $container "args" (concat $container.args $flags (include "croupier.accessFlags" . | fromJsonArray)) -}}
serviceAccountName: {{ include "croupier.serviceAccountName" . | quote }}
automountServiceAccountToken: false
# For a Service called croupier, Kubernetes would set variables with the names of the server's own, `CROUPIER_*`.
enableServiceLinks: false
terminationGracePeriodSeconds: {{ .Values.terminationGracePeriodSeconds }}
securityContext:
  {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- with .Values.runtimeClassName }}
runtimeClassName: {{ . | quote }}
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
    # Only pods of the same version count: otherwise the old pods would decide where the new ones go.
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
