{{- define "croupier.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "croupier.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "croupier.labels" -}}
{{ include "croupier.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "croupier.metadata" -}}
name: {{ include "croupier.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "croupier.labels" . | nindent 2 }}
{{- end }}

{{- define "croupier.serviceAccountName" -}}
{{- .Values.serviceAccount.name | default (ternary (include "croupier.fullname" .) "default" .Values.serviceAccount.create) -}}
{{- end }}

{{- define "croupier.image" -}}
{{- with .Values.image -}}
{{- $repository := ternary .repository (printf "%s/%s" .registry .repository) (empty .registry) -}}
{{- if .digest -}}
{{- printf "%s@%s" $repository .digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (.tag | default $.Chart.AppVersion) -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* croupier.toml. Numbers of a chart's values are floats, but settings and counts are whole. */ -}}
{{- define "croupier.config" -}}
{{- range $key, $value := .Values.config }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "croupier.toml" $value }}
{{- end }}
{{- end }}
{{- if .Values.presets }}
presets = "/etc/croupier/presets.toml"
{{- end }}
{{- with .Values.defaults }}

[defaults]
{{- range $key, $value := . }}
{{ $key }} = {{ include "croupier.toml" $value }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The file of presets. */ -}}
{{- define "croupier.presets" -}}
{{- range $name, $preset := .Values.presets }}
[{{ $name }}]
{{- range $key, $value := $preset }}
{{ $key }} = {{ include "croupier.toml" $value }}
{{- end }}
{{ end }}
{{- end }}

{{- /* A value as TOML has it. Whole numbers of values are floats. */ -}}
{{- define "croupier.toml" -}}
{{- if kindIs "string" . }}{{ . | quote }}
{{- else if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}
{{- else }}{{ . }}
{{- end }}
{{- end }}

{{- /* What decides whether a pod has to be replaced. */ -}}
{{- define "croupier.configChecksum" -}}
checksum/config: {{ print (include "croupier.config" .) (include "croupier.presets" .) | sha256sum }}
{{- end }}

{{- /* A size of the server's settings or of Kubernetes in bytes. */ -}}
{{- define "croupier.bytes" -}}
{{- /* Numbers of values are floats, and large ones would be written with an exponent. */ -}}
{{- $text := ternary (int64 .) . (not (kindIs "string" .)) | toString | nospace -}}
{{- $number := regexFind "^[0-9]+" $text | int64 -}}
{{- $unit := regexReplaceAll "^[0-9]+" $text "" | trimSuffix "B" -}}
{{- $factors := dict "" 1 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "k" 1000 "M" 1000000 "G" 1000000000 -}}
{{- mul $number (get $factors $unit | default 1 | int64) -}}
{{- end }}
