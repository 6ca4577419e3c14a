{{- /* TLS and tokens of the service: flags, volumes and mounts. Whole folders are mounted, since the kubelet does not update a file
that is mounted alone. */ -}}

{{- define "croupier.tlsSecret" -}}
{{- if .Values.tls.certManager.enabled -}}
{{- include "croupier.fullname" . }}-tls
{{- else -}}
{{- .Values.tls.existingSecret -}}
{{- end -}}
{{- end }}

{{- /* The flags, as a JSON list. */ -}}
{{- define "croupier.accessFlags" -}}
{{- $flags := list -}}
{{- if include "croupier.tlsSecret" . -}}
{{- $flags = concat $flags (list "--tls-cert=/etc/croupier-tls/tls.crt" "--tls-key=/etc/croupier-tls/tls.key") -}}
{{- if .Values.tls.clientAuth.enabled -}}
{{- $flags = append $flags "--tls-client-ca=/etc/croupier-clients/ca.crt" -}}
{{- end -}}
{{- end -}}
{{- if .Values.auth.existingSecret -}}
{{- $flags = append $flags "--auth-token-file=/etc/croupier-tokens/tokens" -}}
{{- end -}}
{{- toJson $flags -}}
{{- end }}

{{- define "croupier.accessVolumes" -}}
{{- $name := include "croupier.fullname" . -}}
{{- with include "croupier.tlsSecret" . }}
- name: {{ $name }}-tls
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: tls.crt, path: tls.crt}
      - {key: tls.key, path: tls.key}
{{- if $.Values.tls.clientAuth.enabled }}
- name: {{ $name }}-clients
  secret:
    secretName: {{ $.Values.tls.clientAuth.existingSecret | default . | quote }}
    items:
      - {key: {{ $.Values.tls.clientAuth.key | quote }}, path: ca.crt}
{{- end }}
{{- end }}
{{- with .Values.auth.existingSecret }}
- name: {{ $name }}-tokens
  secret:
    secretName: {{ . | quote }}
    items:
      - {key: {{ $.Values.auth.key | quote }}, path: tokens}
{{- end }}
{{- end }}

{{- define "croupier.accessMounts" -}}
{{- $name := include "croupier.fullname" . -}}
{{- if include "croupier.tlsSecret" . }}
- name: {{ $name }}-tls
  mountPath: /etc/croupier-tls
  readOnly: true
{{- if .Values.tls.clientAuth.enabled }}
- name: {{ $name }}-clients
  mountPath: /etc/croupier-clients
  readOnly: true
{{- end }}
{{- end }}
{{- if .Values.auth.existingSecret }}
- name: {{ $name }}-tokens
  mountPath: /etc/croupier-tokens
  readOnly: true
{{- end }}
{{- end }}
