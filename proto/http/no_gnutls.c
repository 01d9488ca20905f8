/* Static releases only. libmicrohttpd's archive refers to GnuTLS for its own HTTPS, which Sluice
 * never uses (TLS belongs to gRPC). GnuTLS does not link statically on Debian. So the library's
 * start and end functions are empty here. The other functions cannot be reached without
 * MHD_USE_TLS, and end the program. */
#include <stdlib.h>

#if SLUICE_STATIC

int gnutls_global_init(void);
void gnutls_global_deinit(void);
extern void *(*gnutls_malloc)(size_t n);

void *(*gnutls_malloc)(size_t n) = malloc;

int gnutls_global_init(void)
{
    return 0;
}

void gnutls_global_deinit(void)
{
}

#define NEVER_CALLED(name)                                                                         \
    void name(void);                                                                               \
    void name(void)                                                                                \
    {                                                                                              \
        __builtin_trap();                                                                          \
    }

NEVER_CALLED(gnutls_alpn_set_protocols)
NEVER_CALLED(gnutls_bye)
NEVER_CALLED(gnutls_certificate_allocate_credentials)
NEVER_CALLED(gnutls_certificate_free_credentials)
NEVER_CALLED(gnutls_certificate_server_set_request)
NEVER_CALLED(gnutls_certificate_set_dh_params)
NEVER_CALLED(gnutls_certificate_set_retrieve_function2)
NEVER_CALLED(gnutls_certificate_set_retrieve_function3)
NEVER_CALLED(gnutls_certificate_set_x509_key_mem)
NEVER_CALLED(gnutls_certificate_set_x509_key_mem2)
NEVER_CALLED(gnutls_certificate_set_x509_trust_mem)
NEVER_CALLED(gnutls_cipher_get)
NEVER_CALLED(gnutls_credentials_set)
NEVER_CALLED(gnutls_deinit)
NEVER_CALLED(gnutls_dh_params_deinit)
NEVER_CALLED(gnutls_dh_params_import_pkcs3)
NEVER_CALLED(gnutls_dh_params_init)
NEVER_CALLED(gnutls_handshake)
NEVER_CALLED(gnutls_init)
NEVER_CALLED(gnutls_priority_deinit)
NEVER_CALLED(gnutls_priority_init)
NEVER_CALLED(gnutls_priority_set)
NEVER_CALLED(gnutls_protocol_get_version)
NEVER_CALLED(gnutls_psk_allocate_server_credentials)
NEVER_CALLED(gnutls_psk_free_server_credentials)
NEVER_CALLED(gnutls_psk_set_server_credentials_function)
NEVER_CALLED(gnutls_record_check_pending)
NEVER_CALLED(gnutls_record_get_direction)
NEVER_CALLED(gnutls_record_recv)
NEVER_CALLED(gnutls_record_send)
NEVER_CALLED(gnutls_session_get_ptr)
NEVER_CALLED(gnutls_session_set_ptr)
NEVER_CALLED(gnutls_strerror)
NEVER_CALLED(gnutls_transport_set_int2)

#endif
