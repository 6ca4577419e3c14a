{{- /* The parts of the container that both recipes share: image, flags, configuration, admin port, security. */ -}}
{{- define "croupier.container" -}}
image: {{ include "croupier.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
args:
  - serve
  - --config=/etc/croupier/croupier.toml
  - --admin={{ .Values.bindAddress }}:{{ .Values.ports.admin }}
  - --drain-timeout={{ .Values.drainTimeoutSeconds }}s
{{- if and (ne .Values.gpu.mode "none") (not .Values.config.backend) }}
  - --backend=cuda
{{- end }}
{{- /* Rows of a service come in messages. By default the server leaves these to the CPU, and the GPU would have nothing to do. */ -}}
{{- if and (eq .Values.mode "service") (ne .Values.gpu.mode "none") (not .Values.config.host_rows) }}
  - --host-rows=cuda
{{- end }}
{{- with .Values.tracing }}
{{- if .endpoint }}
  - --otlp-endpoint={{ .endpoint }}
  - --trace-ratio={{ .ratio }}
{{- if .caSecret }}
  - --otlp-ca=/etc/croupier-collector/ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.extraEnv }}
env:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "croupier.resources" . | fromYaml }}
resources:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- toYaml .Values.securityContext | nindent 2 }}
# After a crash, the termination message is the end of the log.
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{- /* The given resources, and a GPU if `gpu.mode` asks for one. */ -}}
{{- define "croupier.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if eq .Values.gpu.mode "devicePlugin" -}}
{{- $limits := merge (dict .Values.gpu.resource 1) ($resources.limits | default dict) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- else if eq .Values.gpu.mode "claim" -}}
{{- $_ := set $resources "claims" (list (dict "name" .Values.gpu.claim.name)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end }}

{{- /* Entries of the pod's resourceClaims. */ -}}
{{- define "croupier.resourceClaims" -}}
{{- if eq .Values.gpu.mode "claim" -}}
- name: {{ .Values.gpu.claim.name | quote }}
  resourceClaimTemplateName: {{ .Values.gpu.claim.existingTemplate | default (printf "%s-gpu" (include "croupier.fullname" .)) | quote }}
{{- end -}}
{{- end }}

{{- /* Entries of volumes for both recipes. */ -}}
{{- define "croupier.configVolume" -}}
- name: {{ include "croupier.fullname" . }}-config
  configMap:
    name: {{ include "croupier.fullname" . | quote }}
{{- with .Values.vocabulary.volume }}
- name: {{ include "croupier.fullname" $ }}-vocabulary
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.watermark.existingSecret }}
- name: {{ include "croupier.fullname" $ }}-watermark
  secret:
    secretName: {{ . | quote }}
{{- end }}
{{- with .Values.tracing.caSecret }}
- name: {{ include "croupier.fullname" $ }}-collector
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: {{ $.Values.tracing.caKey | quote }}, path: ca.crt}
{{- end }}
{{- end }}

{{- define "croupier.configMount" -}}
- name: {{ include "croupier.fullname" . }}-config
  mountPath: /etc/croupier
  readOnly: true
{{- if .Values.vocabulary.volume }}
- name: {{ include "croupier.fullname" . }}-vocabulary
  mountPath: /etc/croupier-vocabulary
  readOnly: true
{{- end }}
{{- if .Values.watermark.existingSecret }}
- name: {{ include "croupier.fullname" . }}-watermark
  mountPath: /etc/croupier-watermark
  readOnly: true
{{- end }}
{{- if .Values.tracing.caSecret }}
- name: {{ include "croupier.fullname" . }}-collector
  mountPath: /etc/croupier-collector
  readOnly: true
{{- end }}
{{- end }}
