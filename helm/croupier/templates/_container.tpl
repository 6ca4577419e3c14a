{{- /* The parts of the container that both recipes share: image, flags, configuration, admin port, security. */ -}}
{{- define "croupier.container" -}}
image: {{ include "croupier.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - serve
  - --config=/etc/croupier/croupier.toml
  - --admin={{ .Values.bindAddress }}:{{ .Values.ports.admin }}
  - --drain-timeout={{ .Values.drainTimeoutSeconds }}s
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.resources }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
# What a crash says is the end of its log.
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- define "croupier.configVolume" -}}
- name: {{ include "croupier.fullname" . }}-config
  configMap:
    name: {{ include "croupier.fullname" . }}
{{- end }}

{{- define "croupier.configMount" -}}
- name: {{ include "croupier.fullname" . }}-config
  mountPath: /etc/croupier
  readOnly: true
{{- end }}
