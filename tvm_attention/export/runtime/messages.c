#include <stdarg.h>
#include <stdio.h>

#include "kernels.h"

static __thread char message[512];

tva_status tvi_fail(tva_status status, const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(message, sizeof message, format, values);
  va_end(values);
  return status;
}

const char *tva_last_error(void) { return message; }

/* What a kernel's entry calls when its arguments are not what it was compiled for. */
TVA_HIDDEN void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  size_t used = (size_t)snprintf(message, sizeof message, "%s: ", kind);
  for (int32_t i = 0; i < count && used < sizeof message; ++i)
    if (parts[i]) used += (size_t)snprintf(message + used, sizeof message - used, "%s", parts[i]);
}

TVA_HIDDEN void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *text) {
  snprintf(message, sizeof message, "%s: %s", kind, text);
}
