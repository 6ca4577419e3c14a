{{- /* The name of objects, with room for what is added to it. A release's name may have dots, which names of Services and volumes must
not have. Where a name stands alone it is quoted, because YAML takes some for numbers or switches: 123, 1e3, on. */ -}}
{{- define "croupier.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $release := .Release.Name | replace "." "-" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name $release -}}
{{- $release | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" $release $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{- define "croupier.selectorLabels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
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
name: {{ include "croupier.fullname" . | quote }}
namespace: {{ .Release.Namespace | quote }}
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

{{- /* croupier.toml. Numbers in a chart's values are floats, but settings and counts are integers. */ -}}
{{- define "croupier.config" -}}
{{- range $key, $value := .Values.config }}
{{- if not (kindIs "invalid" $value) }}
{{ $key }} = {{ include "croupier.toml" (list (printf "config.%s" $key) $value) }}
{{- end }}
{{- end }}
{{- if .Values.presets }}
presets = "/etc/croupier/presets.toml"
{{- end }}
{{- if .Values.vocabulary.volume }}
vocabulary = {{ printf "/etc/croupier-vocabulary/%s" .Values.vocabulary.file | quote }}
{{- end }}
{{- with .Values.defaults }}

[defaults]
{{- range $key, $value := . }}
{{ $key }} = {{ include "croupier.toml" (list (printf "defaults.%s" $key) $value) }}
{{- end }}
{{- end }}
{{- end }}

{{- /* The presets file. */ -}}
{{- define "croupier.presets" -}}
{{- range $name, $preset := .Values.presets }}
[{{ $name }}]
{{- range $key, $value := $preset }}
{{ $key }} = {{ include "croupier.toml" (list (printf "presets.%s.%s" $name $key) $value) }}
{{- end }}
{{ end }}
{{- end }}

{{- /* A value in TOML. Takes a list of its path and the value. Integers in a chart's values are floats, which from 2^53 on may differ
from the number that was written: 2^53 + 1 is read as 2^53. */ -}}
{{- define "croupier.toml" -}}
{{- $path := first . -}}
{{- $value := last . -}}
{{- if kindIs "string" $value }}{{ include "croupier.tomlText" $value }}
{{- else if kindIs "slice" $value }}
{{- $entries := list }}
{{- range $i, $entry := $value }}{{ $entries = append $entries (include "croupier.toml" (list (printf "%s[%d]" $path $i) $entry)) }}{{ end }}
{{- printf "[%s]" (join "," $entries) }}
{{- else if kindIs "map" $value }}
{{- $parts := list }}
{{- range $key, $part := $value }}{{ $parts = append $parts (printf "%s = %s" $key (include "croupier.toml" (list (printf "%s.%s" $path $key) $part))) }}{{ end }}
{{- printf "{ %s }" (join ", " $parts) }}
{{- else if kindIs "bool" $value }}{{ $value }}
{{- else if kindIs "invalid" $value }}
{{- fail (printf "%s: is null, which TOML does not have; give a value, or leave it out" $path) }}
{{- else if or (ge (float64 $value) 9007199254740992.0) (le (float64 $value) -9007199254740992.0) }}
{{- fail (printf "%s: Helm would round a number of 2^53 or more; write it in quotes, which the server accepts for watermark keys" $path) }}
{{- else if eq (float64 (int64 $value)) (float64 $value) }}{{ int64 $value }}
{{- else }}{{ $value }}
{{- end }}
{{- end }}

{{- /* A string in TOML. Go escapes some characters in ways that TOML does not know. The string's own backslashes, which Go doubles,
are replaced first and restored at the end. */ -}}
{{- define "croupier.tomlText" -}}
{{- quote . | replace "\\\\" "\\u005c" | replace "\\x" "\\u00" | replace "\\a" "\\u0007" | replace "\\v" "\\u000b" | replace "\\u005c" "\\\\" -}}
{{- end }}

{{- /* The checksum whose change replaces a pod. */ -}}
{{- define "croupier.configChecksum" -}}
checksum/config: {{ print (include "croupier.config" .) (include "croupier.presets" .) | sha256sum }}
{{- end }}

{{- /* A Kubernetes quantity, or a size in the server's settings, as a number: 1.5Gi, 512 MiB, 2e9, 500m. */ -}}
{{- define "croupier.quantity" -}}
{{- $text := toString . | nospace -}}
{{- $number := regexFind "^[0-9]*[.]?[0-9]+([eE][+-]?[0-9]+)?[.]?" $text -}}
{{- $unit := trimPrefix $number $text | trimSuffix "B" -}}
{{- $factors := dict "" 1.0 "m" 0.001 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0 "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 -}}
{{- if or (not $number) (not (hasKey $factors $unit)) -}}
{{- fail (printf "%v is not a quantity such as 2Gi, 1.5Gi, 2e9 or 500m" .) -}}
{{- end -}}
{{- mulf (float64 (trimSuffix "." $number)) (get $factors $unit) -}}
{{- end }}

{{- /* The same in whole bytes. */ -}}
{{- define "croupier.bytes" -}}
{{- include "croupier.quantity" . | float64 | ceil | int64 -}}
{{- end }}

{{- /* A count, size or time in the server's settings as a number: items, bytes or milliseconds. Takes a list of its kind, as
files/ranges.yaml names it, and the value. */ -}}
{{- define "croupier.measured" -}}
{{- $units := dict "counts" (dict "" 1) "sizes" (dict "" 1 "KiB" 1024 "MiB" 1048576 "GiB" 1073741824) "times" (dict "" 1000 "ms" 1 "s" 1000 "m" 60000 "h" 3600000) -}}
{{- $value := last . -}}
{{- $text := include "croupier.plain" $value | nospace -}}
{{- $number := regexFind "^[0-9.]+" $text -}}
{{- mulf (float64 $number) (get (get $units (first .)) (trimPrefix $number $text)) -}}
{{- end }}

{{- /* A string as it is, or an integer without an exponent. */ -}}
{{- define "croupier.plain" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ int64 . }}{{ end -}}
{{- end }}

{{- /* A setting's value in the server, or nothing if it is not set and its default is not in files/defaults.yaml. Takes a list of the
context and the setting's key. */ -}}
{{- define "croupier.setting" -}}
{{- $context := first . -}}
{{- with get $context.Values.config (last .) | default (get ($context.Files.Get "files/defaults.yaml" | fromYaml) (last .)) -}}
{{- include "croupier.plain" . -}}
{{- end -}}
{{- end }}

{{- /* The container's CPU request. If it is not set, Kubernetes takes the limit. */ -}}
{{- define "croupier.requestedCpu" -}}
{{- (.Values.resources.requests | default dict).cpu | default ((.Values.resources.limits | default dict).cpu) | default "" -}}
{{- end }}

{{- /* The number of sampling threads, if the values determine it; otherwise it depends on the node. */ -}}
{{- define "croupier.threads" -}}
{{- $set := .Values.config.threads | default "auto" | toString -}}
{{- $limit := (.Values.resources.limits | default dict).cpu -}}
{{- if ne $set "auto" -}}
{{- int64 (float64 $set) -}}
{{- else if $limit -}}
{{- include "croupier.quantity" $limit | float64 | ceil | int64 -}}
{{- end -}}
{{- end }}

{{- /* The Service with the admin port: a separate one if the main Service is reached from outside the cluster. */ -}}
{{- define "croupier.adminService" -}}
{{- include "croupier.fullname" . }}{{ if ne .Values.service.type "ClusterIP" }}-admin{{ end -}}
{{- end }}

{{- /* The name that the Prometheus operator gives the job, if a monitor is enabled. */ -}}
{{- define "croupier.job" -}}
{{- if .Values.serviceMonitor.enabled -}}
{{- include "croupier.adminService" . -}}
{{- else if .Values.podMonitor.enabled -}}
{{- printf "%s/%s" .Release.Namespace (include "croupier.fullname" .) -}}
{{- end -}}
{{- end }}

{{- /* The rules or the dashboard, with `prometheusRule.slowStepSeconds` in place of 25 ms. Takes a list of the context and the text. */ -}}
{{- define "croupier.slowStep" -}}
{{- $seconds := (first .).Values.prometheusRule.slowStepSeconds | default 0.025 | float64 -}}
{{- $text := last . -}}
{{- if ne $seconds 0.025 -}}
{{- /* Prometheus 2 keeps the edge as the server writes it, such as 1 or 0.00005. Prometheus 3 makes 1.0 and 5e-05 of these. */ -}}
{{- $edge := printf "%.6f" $seconds | trimAll "0" | trimSuffix "." -}}
{{- $edge = hasPrefix "." $edge | ternary (printf "0%s" $edge) $edge -}}
{{- $edges := list $edge (regexMatch "[.e]" (toString $seconds) | ternary (toString $seconds) (printf "%s.0" (toString $seconds))) | uniq -}}
{{- /* In JSON there is a backslash before a quote. */ -}}
{{- $quote := contains "le=\"0.025\"" $text | ternary "\"" "\\\"" -}}
{{- $matcher := len $edges | eq 1 | ternary (printf "le=%s%s%s" $quote $edge $quote) (printf "le=~%s%s%s" $quote (join "|" $edges | replace "." "[.]") $quote) -}}
{{- $text = $text | replace (printf "le=%s0.025%s" $quote $quote) $matcher -}}
{{- $text = $text | replace "25 ms" (ge $seconds 1.0 | ternary (printf "%v s" $seconds) (printf "%v ms" (mulf $seconds 1000))) -}}
{{- /* The colours of the dashboard's 99th percentile: orange from two fifths of that time on. */ -}}
{{- $text = regexReplaceAll "\"value\": 0[.]01(\\s+\\},\\s+\\{\\s+\"color\": \"red\",\\s+\"value\": )0[.]025\\b" $text (printf "\"value\": %v${1}%v" (mulf $seconds 0.4) $seconds) -}}
{{- end -}}
{{- $text -}}
{{- end }}
